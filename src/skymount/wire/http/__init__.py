"""What HTTP carries between a client and a portal: requests, responses, parts, ranges, hosts."""
