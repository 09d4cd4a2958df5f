"""What runs in the triggerer's supervisor, beside Airflow's database.

Airflow hands out trigger rows one by one. Two watchers of one queue that land on two triggerers would each be shown
half of its messages. So a thread in every triggerer's supervisor reads, once a second, which watchers there are,
keeps the watchers of one source on one triggerer, and writes down who belongs to each stream: the roster. The
streams, in the process that runs the triggers, take messages only while everybody on it listens, and settle only what
everybody on it has seen.

A second thread gives back to the scheduler the events that it left without a run. A third tells watchers what events
hold already.

=================  ======================================================================================
``listener``       the plugin; starts the thread where a triggerer starts, and nowhere else
``watch``          the thread's loop: read, write the roster, move; survives whatever the database does
``tables``         all access to Airflow's models,
``dag_tables``     and to its Dags
``scope``          which triggers this triggerer takes
``identity``       from a stored trigger to its stream
``membership``     who belongs to each stream, and who has left it for a moment only
``declared``       which watchers a stored Dag declares (pure)
``ownership``      which triggerer each source belongs to (pure)
``requeue``        events without a run, and their Dags; with ``requeue_watch`` (the second thread's loop),
                   ``requeue_tables`` and ``requeue_changes`` (all access to Airflow's models for it) and
                   ``requeue_deletions``
``shared_folder``  the folder of the roster, of questions and of answers
``recall``         what is stored already, for watchers with ``dedupe_durable``
=================  ======================================================================================
"""
