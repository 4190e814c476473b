"""Authentication of clients, and their authorization."""
