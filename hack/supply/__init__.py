"""What Trimtab is made of: known vulnerabilities of it, and images that can be built again, attested and signed."""
