"""The round: what is decided and written, over and over, for as long as this controller leads."""
