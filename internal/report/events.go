package report

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"time"

	"gad/internal/vfs"
)

// events writes one TensorBoard event file: TFRecord framing around protocol buffers of the type
// Event, both written by hand. The fields used (tensorboard/compat/proto/event.proto,
// summary.proto):
//
//	Event      1 wall_time double, 2 step int64, 3 file_version string, 5 summary Summary, 7 session_log SessionLog
//	Summary    1 value, repeated: 1 tag string, 2 simple_value float
//	SessionLog 1 status enum (START = 1)
//
// A record is its length (uint64), the masked CRC-32C of the length, the bytes, their masked
// CRC-32C; little-endian.
type events struct {
	f   vfs.File
	now func() time.Time
}

// eventsName matches an event file. TensorBoard reads every file with "tfevents" in its name, in
// the order of the names; a host name in it is a custom only.
var eventsName = regexp.MustCompile(`^events\.out\.tfevents\.([0-9]{10})\.gad$`)

// openEvents creates an event file in dir. Its first record starts the steps from first on anew:
// TensorBoard then drops those steps of earlier files.
func openEvents(fsys vfs.FS, dir string, first int, now func() time.Time) (*events, error) {
	if err := vfs.MakeDirs(fsys, dir); err != nil {
		return nil, err
	}
	list, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	stamp := now().Unix()
	for _, e := range list {
		if m := eventsName.FindStringSubmatch(e.Name()); m != nil {
			// this second, or a clock set back
			if n, err := strconv.ParseInt(m[1], 10, 64); err == nil && n >= stamp {
				stamp = n + 1
			}
		}
	}
	f, err := fsys.Create(filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%010d.gad", stamp)))
	if err != nil {
		return nil, err
	}
	w := &events{f, now}
	start := varint(w.event(), 2, uint64(first))
	start = str(start, 7, varint(nil, 1, 1))
	b := record(nil, str(w.event(), 3, []byte("brain.Event:2")))
	if _, err := f.Write(record(b, start)); err != nil {
		f.Close()
		return nil, err
	}
	return w, fsys.SyncDir(dir)
}

// scalars writes all metrics of a step as one record. TensorBoard's values are float32.
func (w *events) scalars(step int, values map[string]float64) error {
	tags := make([]string, 0, len(values))
	for t := range values {
		tags = append(tags, t)
	}
	sort.Strings(tags)
	var sum []byte
	for _, t := range tags {
		v := str(nil, 1, []byte(t))
		v = binary.LittleEndian.AppendUint32(append(v, 2<<3|5),
			math.Float32bits(float32(values[t])))
		sum = str(sum, 1, v)
	}
	ev := str(varint(w.event(), 2, uint64(step)), 5, sum)
	_, err := w.f.Write(record(nil, ev))
	return err
}

// event returns the start of an Event: its wall time.
func (w *events) event() []byte {
	s := float64(w.now().UnixNano()) / 1e9
	return binary.LittleEndian.AppendUint64([]byte{1<<3 | 1}, math.Float64bits(s))
}

// varint appends a protocol buffer's field with an integer.
func varint(b []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(append(b, byte(field<<3)), v)
}

// str appends a protocol buffer's field with bytes.
func str(b []byte, field int, s []byte) []byte {
	b = binary.AppendUvarint(append(b, byte(field<<3|2)), uint64(len(s)))
	return append(b, s...)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskedCRC returns the CRC-32C as TFRecord stores it: rotated and offset, so that a CRC over bytes
// that contain CRCs stays good.
func maskedCRC(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// record appends data with TFRecord's framing.
func record(b, data []byte) []byte {
	n := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(append(b, n...), maskedCRC(n))
	return binary.LittleEndian.AppendUint32(append(b, data...), maskedCRC(data))
}
