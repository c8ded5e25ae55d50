"""Reports on results and studies: sections made of facts, tables and figures."""
