"""Where gangs may go: free capacity, options, topology, and the words for jobs that find no place."""
