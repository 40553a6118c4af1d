"""The executor side: the agent that supervises, the trainer that runs cells, the spool and its feed."""
