"""Results of specs that tests write, for code that lies beside them."""

from contextlib import nullcontext

from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec import parse_spec


def results_of(
    text, path, *, runner="interpreter", tier="quick", origins=None, explained=False, **options
):
    """Run the cases of a tier of a spec with this text, as if its file were at `path`.

    `runner` is one, or the name of a backend; `origins` are those of the cases to run, by default
    all; `explained` and `options` are those of `Runner.run`.
    """
    spec = parse_spec(text, path)
    # A runner keeps entries by the path of their spec: one for each text.
    with Runner(runner) if isinstance(runner, str) else nullcontext(runner) as judge:
        return [
            judge.run(spec, case, explained=explained, **options)
            for case in plan(spec, tier).cases()
            if origins is None or case.origin in origins
        ]


def findings_of(text, path, **options):
    """The findings of all of these cases."""
    return [each for result in results_of(text, path, **options) for each in result.findings]
