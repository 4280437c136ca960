"""Lookahead parallelism: several replicas of a model decode one text, each a share of every step's branches.

Source: section 3.4 of the paper. Replicas exchange tokens only; what computes below each is its engine's affair.
"""
