"""The check by Gymnasium's own checker."""

import warnings

from gymnasium.utils.env_checker import check_env

from envhub.check.report import fail
from envhub.check.subject import Subject, off_loop, remedy_of
from envhub.errors import Fault, UserError
from envhub.spaces import GymnasiumView

_CALLS = 40
_CLOSE_SECONDS = 30.0


async def gymnasium(subject: Subject) -> str:
    """Gymnasium's `check_env` accepts the environment."""
    what = f"environment {subject.spec.id!r}: gymnasium's check_env"
    view: GymnasiumView = await off_loop(
        lambda: GymnasiumView(subject.spec, step_seconds=subject.step_seconds), what, max(subject.step_seconds, 10.0)
    )
    try:
        await off_loop(lambda: _check(view), what, max(30.0, _CALLS * subject.step_seconds))
    except (Fault, UserError) as problem:
        raise fail(str(problem), remedy_of(problem)) from problem
    except Exception as problem:  # check_env asserts, and raises what numpy and the spaces raise
        raise fail(
            f"gymnasium's check_env: {' '.join(str(problem).split()) or type(problem).__name__}",
            "the same seed and actions must give equal observations, rewards, flags and infos",
        ) from problem
    finally:
        await off_loop(view.close, f"{what}: close", _CLOSE_SECONDS)
    return "check_env(as_gymnasium(…)) is content"


def _check(view: GymnasiumView) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on spaces and specs, which are the adapter's
        check_env(view, skip_render_check=True)
