"""The page of an analysis: `report` puts it together, of the sections and plots of its parts."""
