package compute

// Hollow is a Backend whose memory holds nothing: it counts what operations would cost.
// Nobody needs to compute what it would not keep.
type Hollow interface{ Hollow() }
