"""Turns a heap of images and labels into a globally shuffled, sharded TFRecord data set, with Apache Beam.

The modules, in the order in which data meets them; what stands in brackets is plain, without Beam:

    __main__           the command line: our flags -> a PrepareConfig, the rest -> Beam's PipelineOptions  (arguments, command_parser,
                       image_arguments, option_values, config, image_config)
    engines            what each runner needs, and what suits it, before a job goes to it; dataflow: the same for Dataflow
    launch             one run of it from outside  (output_directory, marked_directory, left_run, progress, run_info, run_options);
                       jobs: its runner, whose fault a failure is  (job_servers, errors)
    pipeline           prepare(root, config): the whole graph on one page; resume(root, config): what is missing of it
    list_images        ListImages: what is known of all inputs, and sorted runs of references to them  (list_part, listing, listed,
                       class_tables; sources; columns, cells, class_cells, array_cells, label_lists; splits; references,
                       listed_values, reference_runs, texts, spool)
    shuffle            GlobalShuffle: gives each input its exact rank, hence its shard: the plan  (ranks, keys, sample; plan, plan_values,
                       plain_json)
    write_shards       WriteShards: reads, checks and writes the images of each shard in rank order  (shard_writer, record_writer, shard_files, write_context;
                       input_reader, input_errors; images, image_headers, image_codecs, resize; extras, annotations, array_values,
                       class_masks; examples, quality, catalog)
    write_metadata     WriteMetadata: statistics, dead letters, the manifest last  (metadata, statistics, dead_letters, publish)

What looks at a data set that is written, with TensorFlow, in the same order:

    analyze            `recordmill analyze`: TensorFlow Transform's analyzers, in one job  (analysis_directory, analysis_trial, analysis_summary)
    record_batches     ReadRecordBatches: shards -> pointers to Arrow batches, which are read where they are needed
    preprocessing      the default preprocessing_fn; user_preprocessing: a user's  (traced_preprocessing, graph_failures, tft_modules, quiet_imports)
    transform          `recordmill transform`: the graph on one page, a shard to an element  (transform_job, transform_shards,
                       transform_metadata)

What makes again what is damaged of a data set, without Beam:

    repair             `recordmill repair`: finds damage, and puts in place what has its bytes again  (repair_arguments, written_data_set)
    rebuild            damaged shards, from what names their examples and from the sources  (wanted_inputs, source_changes, record_index)

`references` is what travels between them in the images' place, `accounting` sees that nothing is lost, `counters` says how far it
is, `light_processes` runs the plain parts on every core and `read_ahead` in threads, `files` reads and writes, on disk or in
`object_stores`; `estimate` says beforehand what a run would take, and `summary` at the end what came out.
"""
