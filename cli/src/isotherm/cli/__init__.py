"""The command `isotherm`: operate an installation, its connectors, its devices and its KCQL."""
