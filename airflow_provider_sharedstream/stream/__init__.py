"""The common machine: everything between a broker's client and Airflow's shared streams.

.. code-block:: text

    broker ─receive(n permits)─▶ BrokerConsumer ─Deliveries─▶ Assembler ─Batch─▶ open_stream ─▶ Airflow's fan-out
       ▲            InFlightBudget gives permits; LeaseKeeper renews;                                  │
       │            Cohort holds the door until every watcher listens                                  ▼
       │                                                                      filter ─▶ TriggerEvent ─▶ asset event
       │                                                                                                  │ stored
       └─settle(chunk)── SettlementBatcher ◀─ LaneGuard ◀─ DispositionPolicy ◀─ advance(lane batch) ◀─────┘

Read the modules in this order:

==================  ======================================================================================
``message``         :class:`~.message.Message`: the frozen envelope that filters and Dags see
``delivery``        :class:`~.delivery.Delivery`: what a broker handed over, not settled yet;
                    :class:`~.delivery.Batch`: deliveries of one lane, the raw event of the shared stream
``receipts``        :class:`~.receipts.Receipt`: what one watcher did with one batch
``consumer``        :class:`~.consumer.BrokerConsumer`: all that a broker's adapter implements
``producer``        :class:`~.producer.BrokerStreamProducer`: wires the machine; the one place that knows
                    Airflow's producer
``intake``          receive under permits, in parallel while it pays
``assembler``       deliveries to batches
``in_flight``       permits by messages and bytes
``window``          how many batches may be with the watchers at once
``reconnect``       backoff; transient or fatal
``lease``           renew at half life, bounded; lost leases
``disposition``     outcome to what the broker is told (pure)
``lanes``           an ordered lane held at its first unsettled delivery; epochs
``settlement``      coalesce, chunk, partial failure, flush; with ``settlement_queue`` and ``settlement_retries``
``holdings``        what a stream has received and not let go: keeps ``in_flight``, ``lease``, ``lanes``,
                    ``assembler`` and ``settlement`` together
``judge``           from what the watchers said of a batch to what the broker is told of its messages
``dead_letter``     the note that goes with a rejected message
``cohort``          who must be listening before a message is taken
``roll_call``       who of those on the roster is here; ``roster``: as the supervisor reads it from the database
``attendance``      a message is settled only after everybody who was to see it has
``claim``           one stream of a process per source
``metrics``         every metric name and label in one table
``errors``
==================  ======================================================================================
"""
