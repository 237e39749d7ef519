"""Repairers: each kind of repair as a site has it carried out, one file each."""
