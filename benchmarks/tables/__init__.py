"""Tables and figures of the documents, from the records."""
