"""From an Airflow connection to the settings of a client, one file a cloud."""
