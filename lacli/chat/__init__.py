"""`lacli chat`: a conversation with a model, on a terminal or through a pipe."""
