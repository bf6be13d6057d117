"""What a submission does: its code runs in a jail; points and an executed notebook come out."""
