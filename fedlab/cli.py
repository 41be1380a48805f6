"""Command line of the lab bench."""

import click

from common import cli as command


@click.group(cls=command.Group)
def main() -> None:
    """x"""
