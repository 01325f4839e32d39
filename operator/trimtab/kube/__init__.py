"""The only part of Trimtab that talks to the API server: raw bytes in, patches out.

connection  where the API server is and how to prove who we are (kubeconfig, service account, rotating tokens)
client      one HTTP request at a time: deadlines, errors as `trimtab.errors`, streams of watch lines
resources   URL paths of the kinds that we read and write
objects     the few fields of each kind that we look at
reflector   list + watch -> a true, current copy of all objects of a kind
backoff     how long to wait before trying again
observer    what happened, for metrics
"""
