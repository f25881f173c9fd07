"""The environment checker: does an environment keep the contract, and is its reward one to train on?"""

from envhub.check.report import CheckReport, CheckResult
from envhub.check.runner import CHECKS, check_environment, quick_check

__all__ = ["CHECKS", "CheckReport", "CheckResult", "check_environment", "quick_check"]
