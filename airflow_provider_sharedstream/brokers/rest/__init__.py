"""A REST endpoint that is polled.

==================  ========================================================================
``adapter``         what the common machine drives
``address``         where the endpoint is, in words and as an address
``polling``         asking page by page, and finding out what is new to whom
``asks``            what is asked for, and what is asked for next
``http``            one request: limits, redirects, conditions
``credentials``     the connection's go to the endpoint's own host alone
``errors``          what may go wrong, in clear words
``answers``         from an answer to items; pure
``offers``          what was found, and is not settled
``attendance``      who is there, and from where each goes on
``tracks``          which watchers ask together
``watcher``         what a watcher says of itself
``positions``       up to where each asset has read, and how that is stored
``store``           where it is stored: Airflow's asset state store
==================  ========================================================================

A page is handed out when the one before it is settled and that is stored, so that a crash makes one page come twice; a
watcher that is slow on it holds up the next one for a while only.
"""
