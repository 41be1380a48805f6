"""A client that returns the model with every number moved a little.

Were it returned as it came, Flower would not send it: it stores objects by their content, and has it already.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round; clients differ in how far they move."""
    move = np.float32(1e-3 * (1 + context.node_id % 1000))
    arrays = {name: Array(array.numpy() + move) for name, array in message.content["arrays"].items()}
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content=content, reply_to=message)
