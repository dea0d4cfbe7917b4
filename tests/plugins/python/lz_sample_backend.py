"""A sample third-party backend: a capability descriptor and its kernel functions."""

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
    """Works on any type that supports comparison and multiplication."""
    return x * (x > 0)


KERNELS = {"sample.activation.relu": relu}

# Platforms with a checked-in run of these kernels.
VERIFIED = ("cpu",)
