"""What is said about results and studies: sections made of facts, tables and figures."""
