"""The real controller process against a real API server, with a fault proxy between them and an oracle beside them."""
