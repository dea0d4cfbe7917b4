"""A backend as somebody else would write it: what its kernels can do, and the functions."""

DESCRIPTORS = [
    """{
      "schema_version": "1.0",
      "backend": "sample",
      "backend_version": "0.1.0",
      "platform": "cpu",
      "ops": {
        "activation.relu": [
          {"kernel_id": "sample.activation.relu", "dtypes": ["f32"], "requires_layouts": ["any"], "priority": 1}
        ]
      }
    }"""
]


def relu(x):
    """Works on whatever can be compared and multiplied."""
    return x * (x > 0)


KERNELS = {"sample.activation.relu": relu}

# Platforms on which a run of these kernels is checked in.
VERIFIED = ("cpu",)
