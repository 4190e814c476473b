"""Transactions: their states, their coordinator, and the markers that end them."""
