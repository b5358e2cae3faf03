"""What is stored, and under which names: chunks, records, keys, and what is made of damaged ones."""
