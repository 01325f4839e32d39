"""Every scheduler that binds gangs, in one race: same API server, same nodes, same pods (`race`)."""
