"""Addresses of stores that cannot be meant."""

import pytest

from tfos_magic.errors import DataError
from tfos_magic.storage import open_system


@pytest.mark.parametrize("where", ["s3://", "s3:///run", "s3:/models/digits", "gs://", "abfs:/folder"])
def test_an_address_that_names_no_bucket_is_refused_at_once(where: str) -> None:
    with pytest.raises(DataError, match=f"'{where}' names no bucket: give a URL such as {where.partition(':')[0]}://"):
        open_system(where)


def test_a_local_path_may_have_a_colon(tmp_path) -> None:
    assert open_system(f"{tmp_path}/s3:/models")[1] == f"{tmp_path}/s3:/models"
