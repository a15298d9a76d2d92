"""What `isotherm verify` does: it compares rows of a store with receipts, and needs no server."""
