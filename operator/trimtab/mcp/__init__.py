"""What commands tell, for agents: a server of the Model Context Protocol that reads, and changes nothing."""
