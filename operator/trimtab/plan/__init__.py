"""Decision -> Plan: which pods must exist, with which ranks, degrees, launcher flags and environment. Pure."""
