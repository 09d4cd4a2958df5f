"""Airflow Dags that start from a message, a file or a REST item, over Airflow's shared streams."""

__version__ = "0.1.0"
