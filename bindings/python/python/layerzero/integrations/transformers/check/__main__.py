import os, sys, json
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch, transformers, warnings
from layerzero.integrations import transformers as integration
from . import compare, configs
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
integration.register()
for name in sys.argv[1:] or configs.model_types():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for r in compare.check(name):
            print(json.dumps([r.architecture, r.part, r.outcome, r.detail]), flush=True)
