"""Walking the whole surface of claims on a running cluster, in namespaces of its own: `fleet claim exercise`."""
