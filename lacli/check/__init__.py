"""The check whether every mode's text is plain decoding's: comparison, replay of the batches, verdict and report."""
