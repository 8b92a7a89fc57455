package jail

import "testing"

// Boxinit is started by the number of its descriptor in the child, in which the
// descriptors that it is handed are at their places already.
func TestNothingIsHandedInTheProgramsPlace(t *testing.T) {
	fd, err := sealedBoxinit()
	if err != nil {
		t.Fatal(err)
	}
	if most := int(CgroupFD(16)); fd <= most {
		t.Errorf("boxinit is descriptor %d; one that it is handed may take that place, up to %d", fd, most)
	}
}
