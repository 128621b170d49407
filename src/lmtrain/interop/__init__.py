"""Models in the files of other tools: transformers, PEFT, llama.cpp, and the Hugging Face Hub."""
