"""What is made of nodes: their health is told, and gangs leave slow ones."""
