"""`python -m demo`: a real SQS server, a real Airflow, the example Dags, and messages that start them."""
