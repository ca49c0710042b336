-- The tables of a run. Each column has its meaning beside it, which is also in the table `documentation`.

CREATE TABLE session (
    id INTEGER PRIMARY KEY, -- 1 for the start of the run, one more for each time it was resumed
    started REAL NOT NULL, -- Unix seconds
    heartbeat REAL NOT NULL, -- Unix seconds when the writer last gave a sign of life
    status TEXT NOT NULL, -- running, finished, failed or stopped, as the writer last knew it
    host TEXT NOT NULL, -- name of the machine that writes
    pid INTEGER NOT NULL, -- process that writes
    dropped INTEGER NOT NULL, -- samples that could not be stored
    config TEXT NOT NULL, -- JSON. NaN and Infinity as Python's json and JSON5 write them
    last_step INTEGER, -- number of the last step, sampled or not. NULL: not closed yet
    samples INTEGER NOT NULL, -- samples in the run when this session last wrote
    scalars INTEGER NOT NULL, -- values in the table scalar when this session last wrote
    checksum INTEGER NOT NULL -- CRC-32 of the other columns, see rows.row_checksum
);

CREATE TABLE quantity (
    id INTEGER PRIMARY KEY, -- place in the run's list of quantities, from 0
    name TEXT NOT NULL UNIQUE, -- name in the API
    unit TEXT NOT NULL, -- unit, empty for a pure number
    formula TEXT NOT NULL, -- how it is computed
    source TEXT NOT NULL, -- paper and equation
    per_vector INTEGER NOT NULL, -- 1: a distribution over the vectors of a layer. 0: one number per layer
    checksum INTEGER NOT NULL -- CRC-32 of the other columns, see rows.row_checksum
);

CREATE TABLE layer (
    id INTEGER PRIMARY KEY, -- order in which layers were first seen, from 0
    name TEXT NOT NULL UNIQUE, -- name of the parameter in the model
    shape TEXT NOT NULL, -- JSON list: shape of the tensor
    granularity TEXT NOT NULL, -- neuron, group, tensor, or token of an embedding: what is one weight vector
    axis INTEGER NOT NULL, -- dimension along which the vectors are counted
    group_size INTEGER NOT NULL, -- neurons that make one vector
    vectors INTEGER NOT NULL, -- number of weight vectors
    fan_in INTEGER NOT NULL, -- entries of one vector
    param_group INTEGER NOT NULL, -- index of the optimizer's parameter group
    rule TEXT, -- the theory's rule when the layer was first seen. NULL: unknown
    rows TEXT, -- JSON list: ids of the measured vectors. NULL: all
    checksum INTEGER NOT NULL -- CRC-32 of the other columns, see rows.row_checksum
);

CREATE TABLE sample (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- order of writing. Never used twice, so a reader follows it
    step INTEGER NOT NULL UNIQUE, -- optimizer step, from 0. If it is measured again, the later sample replaces the first
    time REAL NOT NULL, -- Unix seconds
    layers BLOB NOT NULL, -- bit layer.id, lowest first: 1 where measurement has a row
    raw_layers BLOB NOT NULL, -- the same for rows of the table vectors
    checksum INTEGER NOT NULL -- CRC-32 of the other columns, see rows.row_checksum
);

CREATE TABLE measurement (
    key INTEGER PRIMARY KEY, -- sample.id << 20 | layer.id
    numbers BLOB NOT NULL, -- float32, little-endian: mean, rms, q05, q25, q50, q75, q95, min, max of each quantity with per_vector = 1, in the order of quantity.id. Then one number for each with per_vector = 0. NaN: undetermined
    checksum INTEGER NOT NULL -- CRC-32 of the blobs, begun with the key, see rows.blob_checksum
);

CREATE TABLE distribution (
    key INTEGER PRIMARY KEY, -- sample.id << 20 | layer.id
    histograms BLOB NOT NULL, -- zlib of uint32, little-endian: 128 counts for each quantity with per_vector = 1. Bin k counts 2^((k-96)/2) <= |x| < 2^((k-95)/2), the first also all below, the last all above
    extremes BLOB NOT NULL, -- int32, little-endian: for each quantity with per_vector = 1 the ids of the vectors with the smallest and the largest value. -1: none
    checksum INTEGER NOT NULL -- CRC-32 of the blobs, begun with the key, see rows.blob_checksum
);

CREATE TABLE vectors (
    key INTEGER PRIMARY KEY, -- (sample.id << 20 | layer.id) << 8 | place among those with per_vector = 1
    numbers BLOB NOT NULL, -- float32, little-endian: the quantity of every measured vector. Only layers chosen by the user have rows
    checksum INTEGER NOT NULL -- CRC-32 of the blobs, begun with the key, see rows.blob_checksum
);

CREATE TABLE scalar (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- order of writing. The last row of a name grows until it has some hundred values
    name TEXT NOT NULL, -- name under which training logged the values, for example loss
    steps BLOB NOT NULL, -- int64, little-endian: optimizer steps, from 0. If a step has two values, the later one holds
    numbers BLOB NOT NULL, -- float64, little-endian: the values
    checksum INTEGER NOT NULL -- CRC-32 of the other columns, see rows.row_checksum
);

CREATE TABLE note (
    id INTEGER PRIMARY KEY, -- order of writing
    time REAL NOT NULL, -- Unix seconds
    text TEXT NOT NULL UNIQUE, -- a warning that belongs to the run. Stored once
    checksum INTEGER NOT NULL -- CRC-32 of the other columns, see rows.row_checksum
);

CREATE TABLE documentation (
    table_name TEXT NOT NULL, -- a table of this database
    column_name TEXT NOT NULL, -- a column of it
    meaning TEXT NOT NULL -- what the column holds, its unit and layout
);
