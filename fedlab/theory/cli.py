"""The command about the theorem."""

from __future__ import annotations

from pathlib import Path

import click

from common import commandline

PROBLEMS = ("quadratic", "softmax", "all")


@click.command(
    epilog=commandline.example(
        "fedlab theory", "fedlab theory --problem quadratic --clients 20 --seeds 100 --out runs/quadratic"
    )
)
@click.option("--problem", type=click.Choice(PROBLEMS), default="all", help="Functions with a known optimum.")
@click.option("--clients", type=click.IntRange(2, 40), default=10, help="N.")
@click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(10),
    default=400,
    help="R; softmax regressions run a tenth of them.",
)
@click.option("--seeds", type=click.IntRange(1), default=20, help="Random problems to look for the order on.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default="runs/theory", help="Folder to write."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def theory(problem: str, clients: int, num_rounds: int, seeds: int, out: Path, as_json: bool) -> None:
    """Check the paper's theorem: errors on convex problems beside its bound with measured constants.

    Writes a page with curves, the tables that it prints, and all numbers as study.json.
    """
    from fedlab.theory.report import document, write
    from fedlab.theory.study import Question, study

    plan = Question(
        quadratic=problem != "softmax",
        softmax=problem != "quadratic",
        clients=clients,
        rounds=num_rounds,
        seeds=seeds,
    )
    out.mkdir(parents=True, exist_ok=True)
    found = study(plan)
    flags = f"--problem {problem} --clients {clients} --rounds {num_rounds} --seeds {seeds}"
    made = write(found, out, f"fedlab theory {flags}")
    if as_json:
        click.echo(document(found), nl=False)
        return
    for title, table in made.tables.items():
        click.echo(f"{title}\n{table.markdown()}")
    click.echo(f"report: {out / 'theory.html'}")
