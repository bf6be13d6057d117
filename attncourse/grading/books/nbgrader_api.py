"""nbgrader, called from Python: one place that knows its configuration and its quirks."""

import contextlib
import functools
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from attncourse.grading import Refusal


class NoGradebook(Refusal):
    """The gradebook cannot be used; says why."""


def api():
    """nbgrader's own interface to the course in this folder."""
    return _api_of(os.getcwd())


@functools.cache
def _api_of(root: str):
    warnings.filterwarnings("ignore", module="sqlalchemy|nbgrader|jupyter_client")
    import nbgrader.api
    from alembic.script import ScriptDirectory
    from nbgrader.apps import NbGraderAPI
    from nbgrader.dbutil import ALEMBIC_DIR
    from traitlets.config.loader import PyFileConfigLoader

    # nbgrader starts a program for this question, which takes as long as to grade ten students
    nbgrader.api.get_alembic_version = ScriptDirectory(ALEMBIC_DIR).get_current_head
    # nbgrader reports relative to the course's folder, and changes into it while it works
    config = PyFileConfigLoader("nbgrader_config.py", path=root).load_config()
    config.CourseDirectory.root = root
    config.Application.log_level = logging.WARNING
    return NbGraderAPI(config=config)


def configuration():
    """What nbgrader_config.py says."""
    return api().config


def open_gradebook():
    """nbgrader's gradebook of this course.

    Raises:
        NoGradebook: there can be none at the address that is configured.
        sqlalchemy.exc.DBAPIError: the database does not answer as it should; a later try may work.
    """
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        book = api().gradebook
        if _is_of_another_nbgrader(book.engine):
            book.close()
            raise NoGradebook(
                "the gradebook was made by another version of nbgrader; keep a copy of it, and "
                "run `nbgrader db upgrade`"
            )
        return book
    except DBAPIError:
        raise
    except ModuleNotFoundError as error:
        cure = "; pip install 'attncourse[postgresql]'" if "psycopg" in error.name else ""
        raise NoGradebook(f"the gradebook's driver {error.name} is not installed{cure}") from None
    except (SQLAlchemyError, ValueError, OSError) as error:
        where = "the gradebook's address, db_url in nbgrader_config.py,"
        raise NoGradebook(f"{where} is no database's: {_first_line(error)}") from None


def _is_of_another_nbgrader(engine) -> bool:
    import nbgrader.api
    from sqlalchemy import inspect, text

    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):  # it is being made
            return False
        versions = connection.execute(text("SELECT version_num FROM alembic_version")).scalars()
        return bool(set(versions) - {nbgrader.api.get_alembic_version()})


def has_gradebook() -> bool:
    """Whether there is one already, or it is on a server."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(api().coursedir.db_url)
    except (ArgumentError, ValueError):
        return True  # who opens it says what is wrong
    file = Path(url.database or "")
    return url.get_backend_name() != "sqlite" or file.exists() or not file.parent.is_dir()


@contextlib.contextmanager
def gradebook() -> Iterator:
    """nbgrader's gradebook of this course, to read.

    Raises:
        NoGradebook: it cannot be opened or read.
    """
    from nbgrader.api import InvalidEntry
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with open_gradebook() as book:
            yield book
    except (SQLAlchemyError, InvalidEntry) as error:
        raise NoGradebook(f"the gradebook cannot be used: {said(error)}") from None


@contextlib.contextmanager
def all_or_nothing(book) -> Iterator[None]:
    """What is done to an open gradebook in here is booked at the end, or not at all."""
    from sqlalchemy.orm import scoped_session, sessionmaker

    own = book.db
    own.remove()
    try:
        with book.engine.begin() as connection:
            # nbgrader's own commits end here.
            joined = sessionmaker(bind=connection, join_transaction_mode="rollback_only")
            book.db = scoped_session(joined)
            yield
    finally:
        book.db.remove()
        book.db = own


def said(error: Exception) -> str:
    """What a database said, in one line."""
    return _first_line(getattr(error, "orig", None) or error)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
