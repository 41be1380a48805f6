"""The paper's tables and figures as commands: what each shows, which runs it needs, what was published."""
