"""A small GPT-2 learns to count, with the Hugging Face Trainer and Lookbehind-SAM around AdamW.

Needs pip install '.[huggingface]'.

python examples/huggingface_trainer.py [output directory]
"""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

import lookbehind
from lookbehind.integrations.huggingface import SharpnessAwareTrainer

DIGITS = 10


def counting(first: int) -> dict[str, torch.Tensor]:
    """A sequence such as 7, 8, 9, 0, 1, ... and, as is usual for language models, the same as labels."""
    sequence = torch.arange(first, first + 12) % DIGITS
    return {"input_ids": sequence, "labels": sequence}


def main(directory: str) -> SharpnessAwareTrainer:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=DIGITS, n_positions=12, n_embd=32, n_layer=1, n_head=2)
    config.bos_token_id = config.eos_token_id = 0
    arguments = TrainingArguments(
        directory,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=12,
        logging_steps=10,
        report_to="none",
    )
    trainer = SharpnessAwareTrainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=[counting(first) for first in range(80)],
        sharpness=lambda base: lookbehind.LookbehindSAM(base, rho=0.05, k=2, alpha=0.5),
    )
    trainer.train()  # resume_from_checkpoint=True goes on after an interruption
    return trainer


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/huggingface")
