"""Training jobs of other kinds, read: what they say becomes values that Trimtab can plan with. Nothing is executed.

    a file -> kinds (which pods, how many, with which GPUs)  or  slurm (the same from #SBATCH lines)
           -> shell (which commands its scripts would run, as far as the file alone can tell)
           -> arguments (what the trainer is told, by the tables of trainers.yaml) and configs (its files)
           -> judge (is that the training of an LLM?)
           -> read (one `ForeignJob`: what is stated, where, and what is missing)
           -> convert (an LLMTrainingJob, a TrainJob or a JobSet)

What a file does not say stays unknown: it is asked for by name, never guessed.
"""
