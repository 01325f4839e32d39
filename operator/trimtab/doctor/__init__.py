"""`trimtab doctor`: what is wrong with an installation, and how each of it is mended.

findings   what a check says: how bad it is, about what, and its remedy
needs      the rights of each part of Trimtab: the same as in manifests/, which a test holds together
seen       everything that the checks look at, as one value; what could not be looked at says which right is missing
gather     the edge: reads all of that from the API server, and writes nothing
checks     pure functions from what was seen to findings, one file a group
examine    all checks in order
show       the same for people and for programs
"""
