#!/usr/bin/env python3
"""Trains a tiny GPT-2 or Llama on a text with Hugging Face's Trainer and its default optimizer. Model and tokenizer are
made here: nothing is fetched.

    python finetune_hf.py --model llama --steps 50 --output out
    python finetune_hf.py --output out --resume        # goes on from the last checkpoint in `out`
"""
import argparse
import pathlib

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (AutoModelForCausalLM, DataCollatorForLanguageModeling, GPT2Config, LlamaConfig,
                          PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed)

DEFAULT_TEXT = pathlib.Path(__file__).resolve().parent.parent / "charlm" / "text.txt"


def make_tokenizer(text, context):
    """A token per character of the text."""
    characters = ["<unknown>", "<pad>"] + sorted(set(text))
    tokenizer = Tokenizer(models.WordLevel({character: i for i, character in enumerate(characters)}, "<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unknown>", pad_token="<pad>",
                                   model_max_length=context)


def make_model(args, vocabulary):
    common = {"vocab_size": vocabulary, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 1}
    if args.model == "gpt2":
        config = GPT2Config(n_positions=args.context, n_embd=args.width, n_layer=args.layers, n_head=args.heads,
                            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common)
    else:
        config = LlamaConfig(max_position_embeddings=args.context, hidden_size=args.width,
                             intermediate_size=3 * args.width, num_hidden_layers=args.layers,
                             num_attention_heads=args.heads, num_key_value_heads=args.heads // 2, **common)
    return AutoModelForCausalLM.from_config(config)


class Windows(torch.utils.data.Dataset):
    """The text, cut into windows of equal length."""

    def __init__(self, text, tokenizer, context):
        tokens = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
        self.windows = tokens[:len(tokens) // context * context].view(-1, context)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        return {"input_ids": self.windows[index]}


def parse_arguments():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", choices=["gpt2", "llama"], default="gpt2")
    parser.add_argument("--text", default=DEFAULT_TEXT, help="what to learn")
    parser.add_argument("--output", default="finetune_out", help="folder for checkpoints and the final model")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=0, help="steps between checkpoints; 0: none")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --output")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step")
    parser.add_argument("--context", type=int, default=64, help="characters per window")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast")
    parser.add_argument("--fp16", action="store_true", help="fp16 autocast with a gradient scaler")
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args()
    if args.width % args.heads or args.heads % 2:
        parser.error(f"--width {args.width} must be a multiple of --heads {args.heads}, an even number")
    return args


def main():
    args = parse_arguments()
    set_seed(args.seed)
    text = pathlib.Path(args.text).read_text(encoding="utf-8")
    tokenizer = make_tokenizer(text, args.context)
    model = make_model(args, len(tokenizer))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=args.output, max_steps=args.steps, per_device_train_batch_size=args.batch,
            gradient_accumulation_steps=args.accumulate, learning_rate=args.lr, weight_decay=0.1, warmup_steps=2,
            lr_scheduler_type="cosine", logging_steps=1, bf16=args.bf16, fp16=args.fp16, seed=args.seed,
            save_strategy="steps" if args.save_every else "no", save_steps=args.save_every or 500,
            report_to="none", disable_tqdm=True),
        train_dataset=Windows(text, tokenizer, args.context),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=args.resume)
    trainer.save_model()


if __name__ == "__main__":
    main()
